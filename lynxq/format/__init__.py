"""The bytes of frames and segment headers, without I/O: what files and transports share. Text: docs/format.md."""
