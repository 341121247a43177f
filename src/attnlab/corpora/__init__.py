"""Where text and questions come from: the built-in people, or the user's own files."""
