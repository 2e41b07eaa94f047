// internal/overlap.cpp
function overlap(ready, costs, compute, all_reduce) {
  const slowdown = all_reduce.overlap_slowdown, speed = 1 - all_reduce.compute_stall;
  let now = 0, done = 0, queued = 0;
  const compute_until = target => {
    const drain_s = queued * slowdown;
    if (done + drain_s * speed < target) {
      now += drain_s + target - (done + drain_s * speed);
      queued = 0;
    } else if (target > done) {
      now += (target - done) / speed;
      queued -= (target - done) / speed / slowdown;
    }
    done = Math.max(done, target);
  };
  for (let i = 0; i < ready.length; ++i) {
    compute_until(Math.min(ready[i], compute));
    queued += costs[i];
  }
  compute_until(compute);
  return { backward_s: now, exposed_s: queued };
}
