#pragma once
// The cart-pole of Barto, Sutton and Anderson ("Neuronlike adaptive elements that can solve difficult
// learning control problems", 1983), with the equations of Florian ("Correct equations for the dynamics of
// the cart-pole system", 2007) and the constants, step and limits of Gymnasium's CartPole-v1.
#include <cmath>
#include <numbers>

namespace apps {

/// A cart on a track with an unstable pole on it. Units are metres, seconds and radians.
struct CartPole {
  static constexpr double kStart = 0.05;  ///< each state variable starts uniformly in [-kStart, kStart]
  static constexpr double kTrack = 2.4,
                          kAngle = 12 * std::numbers::pi / 180;  ///< an episode ends beyond these limits
  static constexpr int kMaxSteps = 500;  ///< an episode ends after this number of steps

  double x = 0, x_dot = 0, theta = 0, theta_dot = 0;

  /// Pushes the cart left or right for 0.02 s, by one step of the Euler method.
  void step(bool right) {
    constexpr double gravity = 9.8, pole_mass = 0.1, total_mass = 1.1, half_length = 0.5, push = 10,
                     tau = 0.02;
    constexpr double pole_moment = pole_mass * half_length;
    const double sine = std::sin(theta), cosine = std::cos(theta);
    const double pushed = ((right ? push : -push) + pole_moment * theta_dot * theta_dot * sine) / total_mass;
    const double theta_acc = (gravity * sine - cosine * pushed) /
                             (half_length * (4.0 / 3.0 - pole_mass * cosine * cosine / total_mass));
    const double x_acc = pushed - pole_moment * theta_acc * cosine / total_mass;
    x += tau * x_dot;
    x_dot += tau * x_acc;
    theta += tau * theta_dot;
    theta_dot += tau * theta_acc;
  }
  /// True if the pole fell or the cart left the track.
  bool failed() const { return !(std::abs(x) <= kTrack && std::abs(theta) <= kAngle); }
};

}  // namespace apps
