"""Codecs: encode the tensors of an update into bytes on the device, and decode them on the aggregator.

`chain.codec_named` gives the codec of a word such as "delta+int8+deflate". Codecs work with any kind of
update that has the setting `codec`; the empty word is plain safetensors.
"""
