"""What a terminal shows: progress, results, dry runs, data files and completions."""
