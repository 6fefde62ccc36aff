// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "triton_backend/triton_abi.h"

namespace padfree {

// What an instance counts on the server's metrics page, under the names that the Python backend's models use.
enum class Counter { kRefused, kFailed, kTokens, kPaddedTokens, kSequences, kRuns };
constexpr size_t kCounters = 6;

// The families of these counters: one of each for all models of the process. The server frees a series with the last of
// its users in one family alone: with two families of a name, the next update of the other would go into freed memory.
class MetricFamilies {
 public:
  MetricFamilies();  // none where the server has no metrics
  ~MetricFamilies();
  MetricFamilies(const MetricFamilies&) = delete;
  MetricFamilies& operator=(const MetricFamilies&) = delete;

  TRITONSERVER_MetricFamily* of(size_t counter) const { return families_[counter]; }

 private:
  std::array<TRITONSERVER_MetricFamily*, kCounters> families_{};
};

// The series of one instance. Thread-safe.
class InstanceMetrics {
 public:
  InstanceMetrics(const MetricFamilies& families, const std::string& model, const std::string& version,
                  const std::string& instance);
  ~InstanceMetrics();
  InstanceMetrics(const InstanceMetrics&) = delete;
  InstanceMetrics& operator=(const InstanceMetrics&) = delete;

  void add(Counter counter, double value) const;

 private:
  std::array<TRITONSERVER_Metric*, kCounters> metrics_{};
};

}  // namespace padfree
