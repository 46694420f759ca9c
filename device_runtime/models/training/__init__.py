"""What training needs beside an engine: optimisers, clipping, heads."""
