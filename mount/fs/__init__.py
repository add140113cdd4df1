"""What a mount shows: pyfuse3's operations and their replies."""
