"""Tokenizers that come with a bundle and turn text into token ids, with the standard library alone.

There are two forms, those of nearly all published models of this size: word pieces (BERT, DistilBERT) and
byte pairs (GPT-2, RoBERTa, OPT). Ids are those of the `tokenizers` library, which takes 38 MB with its
requirements.
"""
