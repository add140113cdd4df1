"""Files: opened for reading, or written so that they appear complete or not at all."""
