"""Write a commented preset for a person's own data.

methods        the methods, the rows that each needs, and which one fits the columns of a file
model_facts    what the tokenizer and the config of a model lack or limit
places         where model and data are, seen from the preset
preset_text    the choices of a person -> the text of the preset, by the templates beside it
"""
