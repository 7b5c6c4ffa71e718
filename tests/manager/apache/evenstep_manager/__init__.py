__all__ = ['ttypes', 'constants', 'BatchSizeManager']
