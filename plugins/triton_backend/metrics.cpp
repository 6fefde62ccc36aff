// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/metrics.h"

#include "triton_backend/failure.h"

namespace padfree {
namespace {

struct Description {
  const char* name;
  const char* text;
};
constexpr std::array<Description, kCounters> kDescriptions = {{
    {"padfree_refused_requests_total", "Requests that were answered with an error because they do not fit the model"},
    {"padfree_failed_requests_total", "Requests that were answered with an error which is not their fault"},
    {"padfree_tokens_total", "Tokens that were computed"},
    {"padfree_padded_tokens_total", "Tokens that the same runs would have had if padded to their longest sequence"},
    {"padfree_sequences_total", "Sequences that were computed"},
    {"padfree_runs_total", "Runs of the model"},
}};

}  // namespace

MetricFamilies::MetricFamilies() {
  for (size_t i = 0; i < kCounters; ++i) {
    const Description& description = kDescriptions[i];
    if (!succeeded(TRITONSERVER_MetricFamilyNew(&families_[i], TRITONSERVER_METRIC_KIND_COUNTER, description.name,
                                                description.text))) {
      families_[i] = nullptr;
    }
  }
}

MetricFamilies::~MetricFamilies() {
  for (TRITONSERVER_MetricFamily* family : families_) {
    if (family != nullptr) succeeded(TRITONSERVER_MetricFamilyDelete(family));
  }
}

InstanceMetrics::InstanceMetrics(const MetricFamilies& families, const std::string& model, const std::string& version,
                                 const std::string& instance) {
  const std::array<std::pair<const char*, const char*>, 3> labels = {
      {{"model", model.c_str()}, {"version", version.c_str()}, {"instance", instance.c_str()}}};
  std::array<const TRITONSERVER_Parameter*, labels.size()> parameters{};
  for (size_t i = 0; i < labels.size(); ++i) {
    parameters[i] = TRITONSERVER_ParameterNew(labels[i].first, TRITONSERVER_PARAMETER_STRING, labels[i].second);
  }
  for (size_t i = 0; i < kCounters; ++i) {
    TRITONSERVER_MetricFamily* family = families.of(i);
    if (family == nullptr ||
        !succeeded(TRITONSERVER_MetricNew(&metrics_[i], family, parameters.data(), parameters.size()))) {
      metrics_[i] = nullptr;
    }
  }
  for (const TRITONSERVER_Parameter* parameter : parameters) {
    TRITONSERVER_ParameterDelete(const_cast<TRITONSERVER_Parameter*>(parameter));
  }
}

InstanceMetrics::~InstanceMetrics() {
  for (TRITONSERVER_Metric* metric : metrics_) {
    if (metric != nullptr) succeeded(TRITONSERVER_MetricDelete(metric));
  }
}

void InstanceMetrics::add(Counter counter, double value) const {
  TRITONSERVER_Metric* metric = metrics_[static_cast<size_t>(counter)];
  if (metric != nullptr) succeeded(TRITONSERVER_MetricIncrement(metric, value));
}

}  // namespace padfree
