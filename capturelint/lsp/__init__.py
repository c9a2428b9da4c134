"""The language server: findings of the static half in an editor, while the text is being written."""
