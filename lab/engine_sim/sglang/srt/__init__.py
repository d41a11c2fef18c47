"""Only what a flag check imports: `sglang.srt.server_args`."""
