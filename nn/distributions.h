#pragma once
// Probability distributions, as torch.distributions. The parameters of a distribution are tensors of one
// shape, its batch shape: each element is a distribution of its own. sample({n}) draws n times from each.
// Results of sample() have the shape sample_shape + batch_shape. Values passed to log_prob() broadcast with
// the batch shape. Random numbers come from the context's generator. Parameters on CPUs are checked by value;
// those on GPUs are not, because the host would have to wait.
//
//   distributions::Categorical policy({.logits = scores});
//   const Tensor action = policy.sample();
//   const Tensor loss = -(policy.log_prob(action) * advantage).mean();
#include "tapestry/core/tensor.h"

namespace tapestry::distributions {

class Distribution {
 public:
  virtual ~Distribution() = default;
  Distribution(const Distribution&) = delete;
  Distribution& operator=(const Distribution&) = delete;

  const Shape& batch_shape() const { return batch_shape_; }
  /// Draws samples. They have no gradient.
  Tensor sample(const Shape& sample_shape = {}) const;
  /// Draws samples that are differentiable functions of the parameters (Kingma and Welling 2013). Throws
  /// ValueError for discrete distributions, which have none.
  virtual Tensor rsample(const Shape& sample_shape = {}) const;
  /// The logarithm of the probability, or of the density, of each value.
  virtual Tensor log_prob(const Tensor& value) const = 0;
  virtual Tensor entropy() const = 0;
  virtual Tensor mean() const = 0;
  virtual Tensor variance() const = 0;
  Tensor stddev() const;

 protected:
  explicit Distribution(const Shape& batch_shape) : batch_shape_(batch_shape) {}
  virtual Tensor draw(const Shape& sample_shape) const = 0;
  /// sample_shape + batch_shape.
  Shape extended(const Shape& sample_shape) const;

 private:
  const Shape batch_shape_;
};

/// One of the two must be given. `logits` are the logarithms of the probabilities, up to a constant for
/// Categorical, and log(p / (1 - p)) for Bernoulli. `probs` of Categorical need not sum to 1.
struct DiscreteOptions {
  Tensor probs = {}, logits = {};
};

/// The integers 0 to C - 1, with the probabilities in the last dimension of the parameter. The batch shape
/// has no last dimension. Samples are i64.
class Categorical : public Distribution {
 public:
  explicit Categorical(const DiscreteOptions& options);
  Tensor log_prob(const Tensor& value) const override;
  Tensor entropy() const override;
  /// Categories have no mean: both are NaN, as in PyTorch.
  Tensor mean() const override;
  Tensor variance() const override;
  const Tensor& logits() const { return logits_; }  ///< normalised: the logarithms of the probabilities
  Tensor probs() const;

 protected:
  Tensor draw(const Shape& sample_shape) const override;

 private:
  Tensor logits_;
};

/// 1 with probability p, else 0. Samples have the parameter's dtype.
class Bernoulli : public Distribution {
 public:
  explicit Bernoulli(const DiscreteOptions& options);
  Tensor log_prob(const Tensor& value) const override;
  Tensor entropy() const override;
  Tensor mean() const override { return probs(); }
  Tensor variance() const override;
  const Tensor& logits() const { return logits_; }
  Tensor probs() const;

 protected:
  Tensor draw(const Shape& sample_shape) const override;

 private:
  Tensor logits_;
};

/// The normal distribution with mean `loc` and standard deviation `scale`, which broadcast.
class Normal : public Distribution {
 public:
  Normal(const Tensor& loc, const Tensor& scale);
  Normal(double loc, double scale);
  Tensor rsample(const Shape& sample_shape = {}) const override;
  Tensor log_prob(const Tensor& value) const override;
  Tensor entropy() const override;
  Tensor mean() const override { return loc_; }
  Tensor variance() const override;

 protected:
  Tensor draw(const Shape& sample_shape) const override { return rsample(sample_shape); }

 private:
  Tensor loc_, scale_;
};

/// Uniform in [low, high), which broadcast. Outside, log_prob() is -inf.
class Uniform : public Distribution {
 public:
  Uniform(const Tensor& low, const Tensor& high);
  Uniform(double low, double high);
  const Tensor& low() const { return low_; }
  const Tensor& high() const { return high_; }
  Tensor rsample(const Shape& sample_shape = {}) const override;
  Tensor log_prob(const Tensor& value) const override;
  Tensor entropy() const override;
  Tensor mean() const override;
  Tensor variance() const override;

 protected:
  Tensor draw(const Shape& sample_shape) const override { return rsample(sample_shape); }

 private:
  Tensor low_, high_;
};

/// The Kullback-Leibler divergence of q from p, the mean of log p(x) - log q(x) over p, for each pair of the
/// batch shapes, which broadcast. Infinite where q excludes what p does not. Both have the same family.
Tensor kl_divergence(const Categorical& p, const Categorical& q);
Tensor kl_divergence(const Bernoulli& p, const Bernoulli& q);
Tensor kl_divergence(const Normal& p, const Normal& q);
Tensor kl_divergence(const Uniform& p, const Uniform& q);

}  // namespace tapestry::distributions
