SELECT floors.send(:params);
