"""What runs next: the scheduler, its plans, and how results come back."""
