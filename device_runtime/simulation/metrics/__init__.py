"""What the papers measure, as pure functions of records, features and logits."""
