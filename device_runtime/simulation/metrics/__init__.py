"""The measures of the papers, as pure functions of records, features and logits."""
