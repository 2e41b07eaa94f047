#include <cstdlib>

// Creates cpu:0 to cpu:3. TAPESTRY_LOGICAL_DEVICES must be set before the first use of a device.
static const int kFourDevices = setenv("TAPESTRY_LOGICAL_DEVICES", "4", 0);
