"""The runtime half: captures and replays a decode step in worker processes and blames a line."""
