"""The folder that makes `import deep_ep` find deep_ll; see alias.path()."""
