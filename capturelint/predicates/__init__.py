"""At most one small pure function per rule, found by the rule's name."""
