// internal/overlap.cpp
function overlap(ready, costs, compute, interference, queues) {
  const phases = [], all_reduces = [];
  let done = 0;
  for (let i = 0; i < ready.length; ++i) {
    phases.push({ seconds: ready[i] - done, needs: -1 });
    all_reduces.push({ seconds: costs[i], after: i, at_begin: false, queue: queues[i], follows: -1 });
    done = ready[i];
  }
  phases.push({ seconds: compute - done, needs: -1 });
  return simulate_queues(phases, all_reduces, interference);
}
