"""Files that `roundk run` copies into a folder on the job's PYTHONPATH; they run in every Python process of the job."""
