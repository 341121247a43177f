"""Language models: the model, tokenizers, training, generation and evaluation. Import the modules, not this package."""
