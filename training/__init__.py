"""Training of the embedded checkpoint: synthetic series, batches, optimisation, fine-tuning, the model card."""
