"""What ``fffs doctor`` looks at: each module has the checks of one subject."""
