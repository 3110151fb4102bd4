"""Tables made ready for fits."""
