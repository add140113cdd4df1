"""Formats of other libraries: what ``convert`` reads from them, and writes for them.

``imports`` and ``exports`` are the tables. Each library is imported when it is needed.
"""
