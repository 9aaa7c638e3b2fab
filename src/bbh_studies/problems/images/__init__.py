"""What the problems with images share: training, measures, augmentation and attacks."""
