"""The system's side: mount(2), the table of mounts, mount points, unmounting."""
