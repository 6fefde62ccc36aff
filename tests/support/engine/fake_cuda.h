// SPDX-License-Identifier: Apache-2.0
// What fake_cuda.cpp has beside the driver's functions, for fake_tensorrt.cpp and lanes.cpp.
#pragma once

#include <functional>

// Work for a stream (a CUstream): it is done when the stream is synchronised, or recorded by a capture.
__attribute__((visibility("default"))) void fakeCudaEnqueue(void* stream, std::function<void()> work);
__attribute__((visibility("default"))) int fakeCudaLive();      // allocations, streams, graphs and contexts
__attribute__((visibility("default"))) int fakeCudaLaunches();  // of graphs
