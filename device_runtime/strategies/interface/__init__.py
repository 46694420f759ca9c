"""The interface of update kinds: their device half and their aggregator half."""
