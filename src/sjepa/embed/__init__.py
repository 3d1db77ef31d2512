"""What a frozen encoder makes of recordings, hours long too, on disk."""
