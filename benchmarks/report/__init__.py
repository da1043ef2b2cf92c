"""What a comparison left becomes docs/benchmarks.md and its pictures. Nothing here starts or measures anything."""
