"""What a person sees of runs in a terminal."""
