"""What a mount shows: pyfuse3's operations and what they answer."""
