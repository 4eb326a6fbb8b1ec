"""From logits to ids on the device."""
