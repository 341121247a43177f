"""Fast paths that several mechanisms share. Each has a readable reference, the `pattern` of the mechanisms that use it."""
