"""Training of networks: loop, optimiser step, checkpoints, batches, augmentation."""
