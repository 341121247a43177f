"""Looking into a trained model: taps, attention patterns, scores of heads. Import the modules, not this package."""
