"""What the pretrained network is worth beside its class posteriors."""
