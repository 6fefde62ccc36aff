// SPDX-License-Identifier: Apache-2.0
// Shapes by letters: "[T,E]", "[B+1]", "[N/64,T,2]", "[...,E]", "[T,2304]", "[]". A letter stands for the same size
// wherever it occurs in one operator; "..." for the same axes (any number of them); "*" for any axes at all.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "NvInferRuntime.h"

namespace padfree {

struct DimSpec {
  std::string symbol;   // "T", "...", "*"; empty for a fixed size
  int64_t offset = 0;   // "B+1": 1; a fixed size itself
  int64_t divisor = 1;  // "K/64": 64, without remainder
  bool spansAxes() const { return symbol == "..." || symbol == "*"; }
};

class ShapeSpec {
 public:
  explicit ShapeSpec(const std::string& notation);  // at most one of the axes is "..." or "*"

  const std::string& notation() const { return notation_; }
  const std::vector<DimSpec>& dims() const { return dims_; }

  // The letter and offset of every axis of a tensor of this rank; the axes of "..." are called "...0", "...1" and so
  // on, those of "*" are letterless. False where the rank does not fit.
  bool expand(int32_t rank, std::vector<DimSpec>& axes) const;

 private:
  std::string notation_;
  std::vector<DimSpec> dims_;
};

std::string describe(const nvinfer1::Dims& dims);  // "[4,-1]"

// What every letter stands for, gathered from the shapes of one node's inputs. Sizes not yet known are -1.
class Sizes {
 public:
  // Throws std::invalid_argument where the shape contradicts the notation or an earlier tensor.
  void bind(const char* tensor, const ShapeSpec& spec, const nvinfer1::Dims& dims);

  int64_t get(const std::string& symbol) const;      // -1: unknown
  int32_t groupRank() const { return group_rank_; }  // number of axes of "...", 0 before one was bound

  // Throws where the product of these letters' sizes does not fit the int32 indices that count it.
  void checkProduct(const std::vector<std::string>& symbols) const;

 private:
  struct Source {
    int64_t size;
    std::string tensor;
  };
  std::map<std::string, Source> sizes_;
  int32_t group_rank_ = 0;
};

// One of TensorRT's symbolic sizes, to compute with as with a number. Quotients are rounded down.
class SizeExpression {
 public:
  SizeExpression(nvinfer1::IExprBuilder& builder, const nvinfer1::IDimensionExpr& size)
      : builder_(&builder), size_(&size) {}

  const nvinfer1::IDimensionExpr& get() const { return *size_; }

  SizeExpression operator+(const SizeExpression& other) const {
    return apply(nvinfer1::DimensionOperation::kSUM, *other.size_);
  }
  SizeExpression operator+(int64_t other) const {
    return apply(nvinfer1::DimensionOperation::kSUM, *builder_->constant(other));
  }
  SizeExpression operator*(int64_t other) const {
    return apply(nvinfer1::DimensionOperation::kPROD, *builder_->constant(other));
  }
  SizeExpression operator/(int64_t other) const {
    return apply(nvinfer1::DimensionOperation::kFLOOR_DIV, *builder_->constant(other));
  }

 private:
  SizeExpression apply(nvinfer1::DimensionOperation operation, const nvinfer1::IDimensionExpr& other) const {
    return {*builder_, *builder_->operation(operation, *size_, other)};
  }

  nvinfer1::IExprBuilder* builder_;
  const nvinfer1::IDimensionExpr* size_;
};

// What every letter stands for in TensorRT's symbolic sizes, to write down output shapes.
class SizeExpressions {
 public:
  explicit SizeExpressions(nvinfer1::IExprBuilder& builder) : builder_(builder) {}

  void bind(const ShapeSpec& spec, const nvinfer1::DimsExprs& dims);
  void set(const std::string& symbol, const nvinfer1::IDimensionExpr& size) { sizes_[symbol] = &size; }
  SizeExpression at(const std::string& symbol) const { return {builder_, *get(symbol)}; }
  nvinfer1::DimsExprs build(const ShapeSpec& spec, int32_t group_rank) const;
  const nvinfer1::IDimensionExpr& product(const std::vector<std::string>& symbols) const;

 private:
  const nvinfer1::IDimensionExpr* get(const std::string& symbol) const;

  nvinfer1::IExprBuilder& builder_;
  std::map<std::string, const nvinfer1::IDimensionExpr*> sizes_;
};

}  // namespace padfree
