"""What the system provides: mount(2), the table of mounts, mount points, unmounting."""
