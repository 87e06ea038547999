def train(session):
    return None
