"""How the tensors of an update become bytes, and tensors again: one file each, both ends.

`named` gives the codec of a word such as "delta+int8+deflate". Codecs compose around any kind of update that
has the setting `codec`; the empty word is safetensors as they are.
"""
