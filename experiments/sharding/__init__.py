"""One model on several devices: what the compiled programs exchange, what memory they take, what they answer."""
