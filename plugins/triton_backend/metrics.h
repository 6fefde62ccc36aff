// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "triton_backend/triton_abi.h"
#include "triton_batching/failure.h"

namespace padfree {

// What an instance counts on the server's metrics page, under the names that the Python backend's models use.
enum class Counter { kRefused, kFailed, kTokens, kPaddedTokens, kSequences, kRuns, kTruncatedTexts };
constexpr size_t kCounters = 7;

// The families of these counters, each shared by all models of the process. Two families with one name would share
// their series, which the server frees with the last user in either family: an update through the other would then
// write to freed memory.
class MetricFamilies {
 public:
  MetricFamilies();  // leaves them out if the server has no metrics
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
  // counters: what it counts besides errors.
  InstanceMetrics(const MetricFamilies& families, const std::string& model, const std::string& version,
                  TRITONBACKEND_ModelInstance* instance, const std::vector<Counter>& counters);
  ~InstanceMetrics();
  InstanceMetrics(const InstanceMetrics&) = delete;
  InstanceMetrics& operator=(const InstanceMetrics&) = delete;

  void add(Counter counter, double value) const;
  // Counts an answer that is an error; cancelled requests are not counted.
  void count(const Failure& failure) const;

 private:
  std::array<TRITONSERVER_Metric*, kCounters> metrics_{};
};

}  // namespace padfree
