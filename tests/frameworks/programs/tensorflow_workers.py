"""A custom loop under MultiWorkerMirroredStrategy, as TensorFlow's guide shows it."""

import tensorflow as tf


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    print(f"ranks {strategy.num_replicas_in_sync}", flush=True)
    with strategy.scope():
        weight = tf.Variable(tf.zeros([8, 1]))

    @tf.function
    def step(inputs):
        def replica(inputs):
            with tf.GradientTape() as tape:
                error = inputs @ weight - tf.reduce_sum(inputs, 1, keepdims=True)
                loss = tf.reduce_mean(error * error)
            gradient = tape.gradient(loss, weight)
            context = tf.distribute.get_replica_context()
            weight.assign_sub(0.1 * context.all_reduce(tf.distribute.ReduceOp.MEAN, gradient))
            return loss

        losses = strategy.run(replica, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    generator = tf.random.Generator.from_seed(0)
    for number in range(40):
        loss = step(generator.normal([16, 8]))
        if number % 10 == 9:
            print(f"step {number + 1}: loss {float(loss):.4f}", flush=True)


if __name__ == "__main__":
    main()
