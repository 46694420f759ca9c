"""Text to token ids with the standard library alone: tokenizers that travel in a bundle.

Two forms, those of nearly all published models of this size: word pieces (BERT, DistilBERT) and pairs of
bytes (GPT-2, RoBERTa, OPT). Ids are those of the `tokenizers` library, which with what it requires is 38 MB.
"""
