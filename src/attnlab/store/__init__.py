"""What attnlab writes and finds again: folders with checksums, runs, records, and the code that users bring. No torch."""
